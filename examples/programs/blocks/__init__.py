"""What the programs of one kind share: layers, data and losses."""
