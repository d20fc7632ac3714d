"""Every error that penstock itself answers with, grouped by who is at fault."""
