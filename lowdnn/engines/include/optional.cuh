// Parts that a kernel may be without. Its Params inherit from one after the other, since a base that is empty takes no
// bytes, where a member that is empty would take one.

#pragma once

// The arguments of a generated functor. One that is not there need not be defined.
template <class Functor, bool IS_THERE = true> struct ArgsOf {
  typename Functor::Args args;
};
template <class Functor> struct ArgsOf<Functor, false> {};

// p: a kernel's Params. A conversion to the base would hide from the compiler that they are constant.
template <class Functor, class Params>
__device__ __forceinline__ const typename Functor::Args& args_of(const Params& p) {
  return p.ArgsOf<Functor>::args;
}

// The first of two types, or the second one.
template <bool IS_FIRST, class First, class Second> struct Either {
  typedef First Type;
};
template <class First, class Second> struct Either<false, First, Second> {
  typedef Second Type;
};
