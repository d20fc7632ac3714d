"""The page at `/ui` of the admin port, and what it shows, once a second."""
