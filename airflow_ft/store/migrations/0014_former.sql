-- Version 14: a pipeline that goes on under another name.

-- Of the new name: which pipeline it was (JSON: name, the number delivered last, and the one that ends its numbers).
ALTER TABLE pipeline ADD COLUMN former TEXT;
