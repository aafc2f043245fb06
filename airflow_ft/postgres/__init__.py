"""Code that the PostgreSQL sink and the decision log in PostgreSQL share."""
