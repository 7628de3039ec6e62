"""What the families with attention have in common."""
