"""What `optimize` recognises: each file finds one pattern, and makes one node of it."""
