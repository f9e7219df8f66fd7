"""Print the completion script of a shell, made of the options of all verbs.

source <(brim completion bash)                                # in ~/.bashrc
brim completion zsh > ~/.zfunc/_brim                          # a folder of $fpath
brim completion fish > ~/.config/fish/completions/brim.fish
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

SHELLS = ("bash", "zsh", "fish")


@dataclass
class _Option:
    """One option: names, help in one line, values; `takes_value` without values: a file or text."""

    names: list[str]
    about: str
    takes_value: bool
    values: list[str]


@dataclass
class _Command:
    """A verb or subcommand: `path` is " bridge status", "" for brim itself."""

    path: str
    options: list[_Option] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)  # of subcommands, with their help


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `brim completion`."""
    parser.add_argument("shell", choices=SHELLS, help="shell that reads the script")


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    print(script(arguments.shell), end="")
    return 0


def script(shell: str) -> str:
    """Completion script of `shell`."""
    from edge.cli import VERBS, parser_of

    top = _Command("", [_Option(["--help"], "show the verbs", False, []),
                        _Option(["--version"], "show the version", False, [])], dict(VERBS))  # fmt: skip
    commands = [top, *(command for verb in VERBS for command in _commands(parser_of(verb), f" {verb}"))]
    known = [f"{command.path} {name}" for command in commands for name in command.names]
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](commands, known)


def _commands(parser: argparse.ArgumentParser, path: str) -> Iterator[_Command]:
    command = _Command(path)
    below: list[_Command] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            command.names = {choice.dest: _line(choice.help, parser) for choice in action._choices_actions}
            for name in command.names:
                below += _commands(action.choices[name], f"{path} {name}")
        elif action.help != argparse.SUPPRESS:
            values = [str(choice) for choice in action.choices or ()]
            if action.option_strings:
                about = _line(action.help, parser, action)
                command.options.append(_Option(list(action.option_strings), about, action.nargs != 0, values))
            else:
                command.names |= dict.fromkeys(values, "")
    yield command
    yield from below


def _line(text: str | None, parser: argparse.ArgumentParser, action: argparse.Action | None = None) -> str:
    """A help text on one line, with its values."""
    fields = {**vars(action), "prog": parser.prog} if action is not None else {"prog": parser.prog}
    return " ".join((text or "").split()) % fields if "%" in (text or "") else " ".join((text or "").split())


def _with_value(commands: list[_Command]) -> Iterator[tuple[str, list[str]]]:
    """Options with a value: the pattern of a `case` over "PATH:OPTION", and the values."""
    for command in commands:
        for option in command.options:
            if option.takes_value:
                names = (shlex.quote(f"{command.path}:{name}") for name in option.names)
                yield "|".join(names), option.values


def _bash(commands: list[_Command], known: list[str]) -> str:
    values, words = [], []
    for pattern, choices in _with_value(commands):
        reply = f'COMPREPLY=($(compgen -W {shlex.quote(" ".join(choices))} -- "$cur"))'
        values.append(f"        {pattern}) {reply if choices else 'COMPREPLY=()'}; return ;;")
    for command in commands:
        offered = [*command.names, *(name for option in command.options for name in option.names)]
        words.append(f"        {command.path!r}) words={shlex.quote(' '.join(offered))} ;;")
    lines = "\n".join
    return f"""\
# bash completion of brim, made by `brim completion bash`
_brim() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} path= words= i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "$path ${{COMP_WORDS[i]}}" in
        {"|".join(map(shlex.quote, known))}) path="$path ${{COMP_WORDS[i]}}" ;;
        esac
    done
    case "$path:$prev" in
{lines(values)}
    esac
    case "$path" in
{lines(words)}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o bashdefault -o default -F _brim brim
"""


def _zsh(commands: list[_Command], known: list[str]) -> str:
    values, cases = [], []
    for pattern, choices in _with_value(commands):
        offer = f"compadd -- {shlex.join(choices)}" if choices else "_files"
        values.append(f"    ({pattern}) {offer}; return ;;")
    for command in commands:
        names = " ".join(_zsh_item(name, about) for name, about in command.names.items())
        options = " ".join(
            _zsh_item(name, option.about) for option in command.options for name in option.names
        )
        cases.append(f"    ({command.path!r}) names=({names}) options=({options}) ;;")
    lines = "\n".join
    return f"""\
#compdef brim
# zsh completion of brim, made by `brim completion zsh`
_brim() {{
    local at= word
    local -a names options
    for word in "${{(@)words[2,CURRENT-1]}}"; do
        case "$at $word" in
        ({"|".join(map(shlex.quote, known))}) at="$at $word" ;;
        esac
    done
    case "$at:${{words[CURRENT-1]}}" in
{lines(values)}
    esac
    case "$at" in
{lines(cases)}
    esac
    if [[ $PREFIX == -* ]]; then
        _describe option options
    elif (( $#names )); then
        _describe command names
    else
        _files
    fi
}}
if [[ ${{funcstack[1]}} == _brim ]]; then
    _brim "$@"
else
    compdef _brim brim
fi
"""


def _zsh_item(name: str, about: str) -> str:
    escaped = about.replace("\\", "\\\\").replace(":", "\\:")
    return shlex.quote(f"{name}:{escaped}" if about else name)


def _fish(commands: list[_Command], known: list[str]) -> str:
    lines = []
    for command in commands:
        at = f"complete -c brim -n {_fish_quoted(f'__brim_at {_fish_quoted(command.path)}')}"
        lines += [
            f"{at} -f -a {_fish_quoted(name)} -d {_fish_quoted(about)}"
            for name, about in command.names.items()
        ]
        for option in command.options:
            names = " ".join(
                f"-l {text[2:]}" if text.startswith("--") else f"-s {text[1:]}" for text in option.names
            )
            more = f" -x -a {_fish_quoted(' '.join(option.values))}" if option.values else " -r"
            lines.append(f"{at} {names}{more if option.takes_value else ''} -d {_fish_quoted(option.about)}")
    table = " ".join(map(_fish_quoted, known))
    return f"""\
# fish completion of brim, made by `brim completion fish`
function __brim_at
    set -l at ''
    for word in (commandline -opc)[2..-1]
        contains -- "$at $word" {table}; and set at "$at $word"
    end
    test "$at" = "$argv[1]"
end
""" + "".join(f"{line}\n" for line in lines)  # fmt: skip


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
