// Optional parts of a kernel's Params. Params inherits from one part after the other, since an empty base takes no
// bytes, whereas an empty member would take one.

#pragma once

// The arguments of a generated functor, which need not be defined if it is absent.
template <class Functor, bool IS_THERE = true> struct ArgsOf {
  typename Functor::Args args;
};
template <class Functor> struct ArgsOf<Functor, false> {};

// p: a kernel's Params. A conversion to the base would hide from the compiler that Params are constant.
template <class Functor, class Params>
__device__ __forceinline__ const typename Functor::Args& args_of(const Params& p) {
  return p.ArgsOf<Functor>::args;
}

// The type First if IS_FIRST, otherwise Second.
template <bool IS_FIRST, class First, class Second> struct Either {
  typedef First Type;
};
template <class First, class Second> struct Either<false, First, Second> {
  typedef Second Type;
};
