"""A backup or a restore that finds no room names the file and the remedy, and works when there is room."""

import shutil
from pathlib import Path

from edge.backup.manifest import partial_of
from tests.edge.backup.test_backup import BODY, Scene, scene
from tests.support.small_disk import small_disk

__all__ = ["scene"]

SMALL_BYTES = 1 << 20  # the log has more
MESSAGES = 600


def test_a_backup_without_room_is_not_made_and_names_the_remedy(scene: Scene, tmp_path: Path) -> None:
    scene.publish(MESSAGES, body=BODY)
    with small_disk(tmp_path / "small", SMALL_BYTES) as disk:
        backup = disk / "monday"
        status, _, error = scene.brim("backup", backup)
        assert status == 2
        assert f" to {partial_of(backup)}/log/" in error
        assert "No space left on device" in error
        assert f"free space, or name another directory; rm -r {partial_of(backup)}" in error
        assert scene.brim("restore", backup)[0] == 2
    assert scene.brim("backup", scene.backup)[0] == 0


def test_a_restore_without_room_is_incomplete_and_names_the_remedy(scene: Scene, tmp_path: Path) -> None:
    scene.publish(MESSAGES, body=BODY)
    assert scene.brim("backup", scene.backup)[0] == 0
    scene.broker.stop()
    scene.lose_everything()
    with small_disk(tmp_path / "small", SMALL_BYTES) as disk:
        state = disk / "state"
        status, _, error = scene.brim("restore", scene.backup, "--state-dir", state)
        assert status == 2
        assert f" to {state}/log/" in error
        assert "No space left on device" in error
        assert "remove what is restored: rm -r" in error
        assert "its restore was interrupted" in scene.brim("run", "--state-dir", state)[2]
        shutil.rmtree(state)
    assert scene.brim("restore", scene.backup)[0] == 0
    scene.broker.start()
    assert scene.received(MESSAGES) == list(range(MESSAGES))
