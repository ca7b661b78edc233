"""Hosts that are network namespaces of this machine, for the scripts beside this file. Needs root and ip; tc, too, where
links have a rate."""
import os
import subprocess

from training_ranks import fail


def run(*words):
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout


class Hosts:
    """Host i has the address 10.0.0.(i + 1) on its eth0, which leads to a switch. `rate`, in bits per second, Ethernet
    headers included, limits what leaves a host and what reaches it: one for all hosts, or a list."""

    def __init__(self, count, rate=None):
        if os.geteuid() != 0:
            fail("makes network namespaces; expected root")
        self.names = []
        try:
            self.make(count, rate)
        except BaseException:
            self.__exit__()
            raise

    def make(self, count, rate):
        switch = self.add("switch")
        run("ip", "-n", switch, "link", "add", "bridge", "mtu", "9000", "type", "bridge")
        run("ip", "-n", switch, "link", "set", "bridge", "up")
        self.hosts = [self.add(str(host)) for host in range(count)]
        for host, name in enumerate(self.hosts):
            run("ip", "-n", name, "link", "add", "eth0", "mtu", "9000", "type", "veth", "peer", "name", f"port{host}",
                "mtu", "9000", "netns", switch)
            run("ip", "-n", switch, "link", "set", f"port{host}", "master", "bridge", "up")
            run("ip", "-n", name, "address", "add", f"10.0.0.{host + 1}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")
            if rate:
                own = rate[host] if isinstance(rate, list) else rate
                self.limit(name, "eth0", own, "2mb")
                # Several hosts may send to one, and nothing is to be dropped.
                self.limit(switch, f"port{host}", own, "32mb")

    @staticmethod
    def limit(space, device, rate, queue):
        run("ip", "netns", "exec", space, "tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", f"{rate:.0f}bit",
            "burst", "64kb", "limit", queue)

    def add(self, suffix):
        name = f"troika-{os.getpid()}-{suffix}"
        run("ip", "netns", "add", name)
        self.names.append(name)
        run("ip", "-n", name, "link", "set", "lo", "up")
        return name

    def prefixes(self):
        """The words in front of a command that run it on each host."""
        return [["ip", "netns", "exec", host] for host in self.hosts]

    def vanish(self, host):
        """Whatever is sent to it from now on is lost, and it hears nothing."""
        run("ip", "-n", self.hosts[host], "link", "set", "eth0", "down")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name])
