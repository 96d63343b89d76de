"""What people look at: terminal tables, plots, the HTML report and the live view; no torch, no ray."""
