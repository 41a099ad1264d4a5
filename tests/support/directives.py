"""Lines of C++ that make a preprocessor open a file."""

from __future__ import annotations

SECRET = "/etc/hostname"

#: Lines that open a file, or would under another compiler.
READING = (
    f'#include "{SECRET}"',
    f"#include <{SECRET}>",
    f'  # include "{SECRET}"',
    f'/**/#include "{SECRET}"',
    f'/* \n */ #/**/include/**/"{SECRET}"',
    f'%:include "{SECRET}"',
    f'??=include "{SECRET}"',
    f'#inc\\\nlude "{SECRET}"',
    f'#\\\ninclude "{SECRET}"',
    f'#??/\ninclude "{SECRET}"',
    f'#define WHERE "{SECRET}"\n#include WHERE',
    f'#include_next "{SECRET}"',
    f'#import "{SECRET}"',
    f'const char text[] = {{\n#embed "{SECRET}"\n}};',
    f'#if __has_include("{SECRET}")\n#endif',
    f'\x0b#include "{SECRET}"',
    f'\r#include "{SECRET}"',
    f'#\\u0069nclude "{SECRET}"',
)
