"""Pictures and figures of the OneFlow articles: actors act by act, loading beside computing, quotas on a boundary, SBP with real tensors."""
