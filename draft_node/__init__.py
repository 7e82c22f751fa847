"""The assistant's node: it drafts, and serves answers that a verify node validated."""
