"""The index that retrieval reads: node store, vectors (FAISS), terms (BM25), manifest."""
