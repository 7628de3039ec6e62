"""What people see: leaderboard and learning curves as one page, Markdown, CSV and JSON."""
