"""Units of systemd for Brim: the service, and the socket that systemd opens for it.

One template serves the system service, the service of a user, and the Debian package. A service of the
system has its own user and a sandbox. The manager of a user has no privilege for most of that sandbox, so its
service has the part that a process can apply to itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edge.config.listener import Listener

_SERVICE = """\
[Unit]
Description=Brim edge broker{title}
Documentation=man:brim(1)
{order}StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart={command}
ExecReload=/bin/sh -c "kill -HUP $MAINPID"
Restart=on-failure
RestartSec=1
{backoff}# The configuration, or a file of users or rules, is not valid
RestartPreventExitStatus=78
# A start syncs some files; a slow disk may take longer than the 90 s of systemd
TimeoutStartSec=15min
WatchdogSec=30
LimitNOFILE=65536
LimitRTPRIO=10
{identity}
# Sandbox. A bridge to a directory needs ReadWritePaths= in a drop-in: systemctl {flag}edit {name}
NoNewPrivileges=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
UMask=0027
{sandbox}
[Install]
WantedBy={target}
"""

_ORDER = """\
After=network-online.target
Wants=network-online.target
"""

_BACKOFF = """\
RestartSteps=5
RestartMaxDelaySec=10
"""
_BACKOFF_SYSTEMD = 254  # earlier versions warn of these lines at each reload of units

# RemoveIPC= would remove rings in /dev/shm at each stop. RestrictRealtime= would take SCHED_FIFO from the
# thread of the log, PrivateUsers= the identity of local programs, ProcSubset=pid the id of the boot.
_IDENTITY = """\
User=brim
Group=brim
StateDirectory={name}
StateDirectoryMode=0750
RuntimeDirectory={name}
RuntimeDirectoryMode=0750
RuntimeDirectoryPreserve=yes
# A key in /etc/credstore/brim.key: key_file = "$CREDENTIALS_DIRECTORY/brim.key"
LoadCredential=brim.key
"""

_SANDBOX = """\
CapabilityBoundingSet=
SystemCallFilter=~@privileged
DevicePolicy=closed
PrivateDevices=yes
PrivateMounts=yes
PrivateTmp=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHome=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectSystem=strict
"""

_SOCKET = """\
[Unit]
Description=Listening sockets of {service}

[Socket]
{streams}
Backlog=4096
{access}Service={service}

[Install]
WantedBy=sockets.target
"""


@dataclass(frozen=True, slots=True)
class Unit:
    """A service of systemd, of the system or of a user.

    `instance`: a name, %i of a template unit, or "". `systemd`: its version; 0 if unknown.
    """

    is_system: bool
    instance: str = ""
    systemd: int = 0

    @property
    def name(self) -> str:
        """Name of the unit without its suffix, and of its directories."""
        return f"brim-{self.instance}" if self.instance else "brim"

    def text(self, command: str) -> str:
        """The unit that runs `command`."""
        return _SERVICE.format(
            title=f", instance {self.instance}" if self.instance else "",
            command=command,
            backoff=_BACKOFF if self.systemd >= _BACKOFF_SYSTEMD else "",
            name=self.name,
            flag="" if self.is_system else "--user ",
            order=_ORDER if self.is_system else "",
            identity=_IDENTITY.format(name=self.name) if self.is_system else "",
            sandbox=_SANDBOX if self.is_system else "",
            target="multi-user.target" if self.is_system else "default.target",
        )


def socket_unit(unit: Unit, listeners: Iterable[Listener]) -> str:
    """The socket unit with one address for each listener."""
    access = "SocketUser=brim\nSocketGroup=brim\nSocketMode=0660\n" if unit.is_system else "SocketMode=0660\n"
    streams = "\n".join(f"ListenStream={_address(listener)}" for listener in listeners)
    return _SOCKET.format(service=f"{unit.name}.service", streams=streams, access=access)


def _address(listener: Listener) -> str:
    if listener.path is not None:
        return str(listener.path)
    host = {"localhost": "127.0.0.1"}.get(listener.host, listener.host.strip("[]"))
    return f"[{host}]:{listener.port}" if ":" in host else f"{host}:{listener.port}"
