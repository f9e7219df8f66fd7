"""Names of users in errors."""

import os
import pwd

from edge.user_names import user_name


def test_a_user_is_named_and_one_without_a_name_has_its_number() -> None:
    assert user_name() == pwd.getpwuid(os.geteuid()).pw_name
    assert user_name(0) == "root"
    assert user_name(123456) == "123456"
