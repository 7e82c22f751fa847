"""The target's node: it checks drafts with one forward pass over all sessions, and decides."""
