"""Report results: leaderboard and learning curves as HTML, Markdown, CSV and JSON."""
