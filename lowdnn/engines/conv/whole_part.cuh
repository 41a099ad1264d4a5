// The widest access that divides a run of elements.

#pragma once

// The largest power of two that divides a number, up to `limit`, a power of two.
constexpr int whole_part(int number, int limit) { return number % limit == 0 ? limit : whole_part(number, limit / 2); }
