"""What happens when a step leaves the known paths, or fails: its matched operations are run again imperatively (`replay`), and whether it is worth going on (`policy`)."""
