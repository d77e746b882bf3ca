"""What happens when a step leaves the known paths: replay of matched operations, and when to stop trying."""
