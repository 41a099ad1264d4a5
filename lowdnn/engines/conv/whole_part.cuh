// How many elements an access may have that is never cut.

#pragma once

// The largest power of two that divides a number, up to a limit, itself one.
constexpr int whole_part(int number, int limit) { return number % limit == 0 ? limit : whole_part(number, limit / 2); }
