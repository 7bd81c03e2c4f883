"""What drivers stand on: parts in processes of their own, links through proxies, brokers as child processes."""
