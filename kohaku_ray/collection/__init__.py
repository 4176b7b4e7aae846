"""From a configuration's documents to its index, without Ray: files, texts and images to encode, shards."""
