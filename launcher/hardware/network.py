"""Network facts: interfaces with their addresses, InfiniBand ports, what the host name resolves to."""

from __future__ import annotations

import ipaddress
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from .files import ROOT, list_names, read_int, read_text

_SIOCGIFADDR = 0x8915  # Linux: ask for an interface's IPv4 address
_LOOPBACK_TYPE = 772  # Linux: ARPHRD_LOOPBACK in /sys/class/net/<name>/type
_LINK_SCOPE = "20"  # Linux: scope column of /proc/net/if_inet6


@dataclass(frozen=True, slots=True)
class Interface:
    """One network interface.

    Args:
        name: such as eth0.
        addresses: IPv4 first, then IPv6; link-local ones left out.
        up: whether it can carry traffic.
        loopback: reaches this machine only.
        speed_mbit_s: link speed, None if not told.
    """

    name: str
    addresses: tuple[str, ...]
    up: bool
    loopback: bool
    speed_mbit_s: int | None = None


@dataclass(frozen=True, slots=True)
class Network:
    """The machine's name on the network and its ways out.

    Args:
        hostname: its own name.
        hostname_addresses: what that name resolves to here, without a lookup on the network.
        interfaces: by name.
        infiniband_ports: such as mlx5_0:1, active ones only.
    """

    hostname: str
    hostname_addresses: tuple[str, ...]
    interfaces: tuple[Interface, ...]
    infiniband_ports: tuple[str, ...] = ()

    @property
    def outward(self) -> tuple[Interface, ...]:
        """Interfaces that are up, have an address and reach other machines."""
        return tuple(i for i in self.interfaces if i.up and i.addresses and not i.loopback)


def read_network(root: Path = ROOT) -> Network:
    """The interfaces of this machine; addresses are read from the kernel only for the real root."""
    hostname = read_text(root / "proc/sys/kernel/hostname") or socket.gethostname()
    six = _ipv6_addresses(read_text(root / "proc/net/if_inet6"))
    folder = root / "sys/class/net"
    interfaces: list[Interface] = []
    for name in list_names(folder):
        if not (folder / name).is_dir():  # bonding_masters is a file
            continue
        four = _ipv4_address(name) if root == ROOT else None
        state = read_text(folder / name / "operstate")
        loopback = read_int(folder / name / "type") == _LOOPBACK_TYPE
        speed = read_int(folder / name / "speed")
        addresses = ((four,) if four else ()) + six.get(name, ())
        up = state == "up" or (state == "unknown" and bool(addresses))  # loopback and tunnels say unknown
        interfaces.append(Interface(name, addresses, up, loopback, speed if speed and speed > 0 else None))
    return Network(
        hostname, _hosts_file(read_text(root / "etc/hosts"), hostname), tuple(interfaces), _infiniband(root)
    )


def _ipv4_address(name: str) -> str | None:
    try:
        import fcntl  # not on Windows

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        return socket.inet_ntoa(answer[20:24])
    except (ImportError, OSError):
        return None


def _ipv6_addresses(text: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():  # address, number, prefix, scope, flags, name
        words = line.split()
        if len(words) == 6 and len(words[0]) == 32 and words[3] != _LINK_SCOPE:
            found[words[5]] = (*found.get(words[5], ()), str(ipaddress.IPv6Address(int(words[0], 16))))
    return found


def _hosts_file(text: str, hostname: str) -> tuple[str, ...]:
    """What /etc/hosts answers for the machine's name: asking a name server could hang for seconds."""
    found: list[str] = []
    for line in text.splitlines():
        address, *names = line.partition("#")[0].split() or [""]
        if hostname in names:
            found.append(address)
    return tuple(found)


def _infiniband(root: Path) -> tuple[str, ...]:
    folder = root / "sys/class/infiniband"
    return tuple(
        f"{device}:{port}"
        for device in list_names(folder)
        for port in list_names(folder / device / "ports")
        if "ACTIVE" in read_text(folder / device / "ports" / port / "state")
    )
