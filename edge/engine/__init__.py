"""C core as Python sees it: engine, event loop, codes, limits and subscription options.  No policy."""
