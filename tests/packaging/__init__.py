"""What is handed out: the wheel, and the source distribution."""
