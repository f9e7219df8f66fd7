"""`./dev deb`: the package in a clean Debian with systemd runs, restarts, reloads and leaves nothing."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.project import ROOT

CHECK = """
exec > /root/check.log 2> /root/errors.log
ring() {
    brim status --json "$@" | python3 -c '
import json, sys
[ring] = json.load(sys.stdin)["rings"]
print("epoch", ring["epoch"], "records", ring["end_offset"])'
}
until systemctl is-active --quiet brim; do systemctl is-failed --quiet brim && break; sleep 0.2; done
systemctl show brim -p Type -p NRestarts
brim status --json | grep -q '"edge_id"' && echo status
brim pub plant/1 kept -r -q 1 && brim sub plant/1 -C 1
pid=$(systemctl show brim -p MainPID --value)
grep -E 'NoNewPrivs|Seccomp:' /proc/$pid/status
systemctl reload brim && echo reloaded
python3 -c 'import brim
with brim.subscribe("plant/1", start="oldest") as plant:
    print("program", bytes(next(iter(next(iter(plant))))).decode())'
console='
[web]
listen = "127.0.0.1:8080"
users_file = "web.users"'
cp /etc/brim/brim.toml /root/plain.toml; echo "$console" >> /etc/brim/brim.toml
brim check /etc/brim/brim.toml 2>&1 | grep -o 'brim passwd .* makes it'
echo secret | brim passwd --password-stdin /etc/brim/web.users ann && stat -c '%G %a' /etc/brim/web.users
systemctl restart brim
until python3 -c 'from urllib.request import urlopen
print("console", urlopen("http://127.0.0.1:8080/").status)'; do sleep 0.2; done
brim doctor | grep -E 'service:|users_file'
chmod 600 /etc/brim/web.users; brim check /etc/brim/brim.toml | grep -o 'the group brim, .* cannot read .*;'
brim doctor | grep -o 'web.users_file: .* Permission denied'
brim check /etc/brim/brim.toml | grep -oE 'service .*|in /run/brim$'
brim doctor --config /etc/brim/brim.toml | grep -o 'runtime_dir: /run/brim'
cat /root/plain.toml > /etc/brim/brim.toml
systemctl restart brim && brim sub plant/1 -C 1
before=$(ring); systemctl stop brim; systemctl start brim; [ "$before" = "$(ring)" ] && echo rings survive
cp /etc/brim/brim.toml /root/first.toml
echo 'edge_idd = "press"' > /etc/brim/brim.toml
systemctl restart brim 2> /dev/null; systemctl is-failed brim; systemctl show brim -p ExecMainStatus
until systemctl status brim --no-pager | grep -o '/etc/brim/brim.toml:1: edge_idd'; do sleep 0.2; done
sed '1i runtime_dir = "/dev/shm/brim"' /root/first.toml > /etc/brim/brim.toml
systemctl restart brim; brim pub plant/1 again -q 1
before=$(ring --runtime-dir /dev/shm/brim); systemctl stop brim; systemctl start brim
[ "$before" = "$(ring --runtime-dir /dev/shm/brim)" ] && echo "$before" | grep -o 'records 1'
cat /root/first.toml > /etc/brim/brim.toml
systemctl restart brim
brim backup /root/backup > /dev/null; systemctl stop brim
rm -r /var/lib/brim /run/brim; brim restore /root/backup --state-dir /var/lib/brim --runtime-dir /run/brim |
    grep -o 'restored edge'
systemctl start brim; brim sub plant/1 -C 1
. /usr/share/bash-completion/completions/brim && complete -p brim
zcat /usr/share/man/man1/brim-backup.1.gz | grep '^.Nd'
systemctl stop brim
brim service install --system --socket --print | sed '1,/brim.socket/d' > /etc/systemd/system/brim.socket
systemctl daemon-reload && systemctl start brim.socket
brim pub plant/2 activated -r && brim sub plant/2 -C 1
sed s/1883/1899/ /etc/brim/brim.toml > /etc/brim/b.toml; chgrp brim /etc/brim/b.toml
brim check /etc/brim/b.toml | grep -oE 'service .*|in /run/brim-b$'
systemctl start brim@b && brim status --instance b --json | grep -o '"runtime_dir": "/run/brim-b"'
journalctl -u brim --no-pager >&2
apt-get purge -qq -y brim > /dev/null 2>&1
systemctl is-active brim@b
ls -d /var/lib/brim* /run/brim* /etc/brim /usr/lib/brim 2> /dev/null || echo gone
systemctl poweroff
"""
EXPECTED = """\
Type=notify
NRestarts=0
status
kept
NoNewPrivs:	1
Seccomp:	2
reloaded
program kept
brim passwd /etc/brim/web.users NAME` makes it
ann: added
brim 640
console 200
ok      service: brim.service, user brim
ok      web.users_file: /etc/brim/web.users
the group brim, which reads /etc/brim/brim.toml, cannot read /etc/brim/web.users;
web.users_file: /etc/brim/web.users: cannot be read: Permission denied
service   brim.service, user brim
in /run/brim
runtime_dir: /run/brim
kept
rings survive
failed
ExecMainStatus=78
/etc/brim/brim.toml:1: edge_idd
records 1
restored edge
kept
complete -o bashdefault -o default -F _brim brim
.Nd copy the state and the log of a broker
activated
service   brim@b.service, user brim
in /run/brim-b
"runtime_dir": "/run/brim-b"
inactive
gone
"""
UNIT = """\
[Unit]
After=brim.service
[Service]
Type=oneshot
ExecStart=/bin/bash /root/check.sh
TimeoutStartSec=300
"""


@pytest.mark.campaign
@pytest.mark.timeout(1200)
def test_the_package_works_under_systemd(debian: Path) -> None:
    for words in (["wheels", "manylinux_2_17_x86_64"], ["deb"]):
        subprocess.run([ROOT / "dev", *words], check=True)
    [package] = (ROOT / "dist").glob("*.deb")
    shutil.copy(package, debian / "root" / "brim.deb")
    install = ["chroot", str(debian), "apt-get", "install", "-qq", "-y", "/root/brim.deb"]
    subprocess.run(
        install,
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
    )
    (debian / "root" / "check.sh").write_text(CHECK)
    units = debian / "etc" / "systemd" / "system"
    (units / "brim-check.service").write_text(UNIT)
    (units / "multi-user.target.wants" / "brim-check.service").symlink_to("../brim-check.service")
    boot = [
        "systemd-nspawn",
        "-D",
        str(debian),
        "--register=no",
        "--keep-unit",
        "--boot",
        "--private-network",
    ]
    subprocess.run(boot, check=True, stdout=subprocess.DEVNULL, timeout=400)
    errors = (debian / "root" / "errors.log").read_text()
    assert (debian / "root" / "check.log").read_text() == EXPECTED, errors
