"""Interfaces, addresses and names, on this machine and on trees that stand in for others."""

from pathlib import Path

from xl.launcher.hardware.network import read_network

from .tree import write_tree


def test_this_machine_has_a_loopback() -> None:
    network = read_network()
    loopback = [interface for interface in network.interfaces if interface.loopback]
    assert loopback
    assert loopback[0].addresses[0] == "127.0.0.1"
    assert not set(loopback) & set(network.outward)
    assert network.hostname


def test_interfaces_from_a_tree(tmp_path: Path) -> None:
    write_tree(
        tmp_path,
        {
            "proc/sys/kernel/hostname": "node-1\n",
            "etc/hosts": "127.0.0.1 localhost\n127.0.1.1 node-1.example node-1  # x\n# 1.2.3.4 node-1\n",
            "proc/net/if_inet6": (
                "00000000000000000000000000000001 01 80 10 80       lo\n"
                "fd000000000000000000000000000002 04 40 00 82     eth0\n"
                "fe8000000000000000000000000000ff 04 40 20 80     eth0\n"
                "broken line\n"
            ),
            "sys/class/net/eth0/operstate": "up",
            "sys/class/net/eth0/type": "1",
            "sys/class/net/eth0/speed": "100000",
            "sys/class/net/lo/operstate": "unknown",
            "sys/class/net/lo/type": "772",
            "sys/class/net/eth1/operstate": "down",
            "sys/class/net/eth1/speed": "-1",
            "sys/class/net/bonding_masters": "",
            "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
            "sys/class/infiniband/mlx5_1/ports/1/state": "1: DOWN",
        },
    )
    network = read_network(tmp_path)
    assert [interface.name for interface in network.interfaces] == ["eth0", "eth1", "lo"]
    eth0, eth1, lo = network.interfaces
    assert (eth0.addresses, eth0.up, eth0.speed_mbit_s) == (("fd00::2",), True, 100000)
    assert (eth1.up, eth1.speed_mbit_s) == (False, None)
    assert (lo.loopback, lo.up, lo.addresses) == (True, True, ("::1",))
    assert [interface.name for interface in network.outward] == ["eth0"]
    assert network.hostname_addresses == ("127.0.1.1",)
    assert network.infiniband_ports == ("mlx5_0:1",)


def test_nothing_to_read(tmp_path: Path) -> None:
    network = read_network(tmp_path)
    assert network.interfaces == ()
    assert network.hostname
