"""Starting nodes as containers or processes on their hosts, reaching and ending them. Start with `node`."""
