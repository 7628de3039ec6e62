"""Pages in a real browser: Debian's Chromium, without a screen and without a network."""
