"""The address of a client behind proxies."""

from __future__ import annotations

from headgate.web.address import AddressReader

reader = AddressReader("x-forwarded-for", trusted=["10.0.0.0/8"])

lines = [(b"x-forwarded-for", b"192.0.2.1, 203.0.113.9, 10.0.0.5")]
print(reader.read("10.0.0.7", lines).key)  # 203.0.113.9
print(reader.read("198.51.100.4", lines).key)  # 198.51.100.4
print(reader.read("2001:db8:1:2::17", []).key)  # 2001:db8:1:2::/64
