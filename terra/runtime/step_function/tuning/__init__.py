"""What is found out by measuring, function by function."""
