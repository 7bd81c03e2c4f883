"""The stage that drivers stand on: parts in processes of their own, links through proxies, brokers as children, ports
for them."""
