// Lists of independent products for the main loop of tile_wgmma.cuh: each has its own operands, extents and output.
//
// The tiles of all products are one list of work items, product by product. The list is part of the kernel's
// parameters.

#pragma once

#include "include/math/search.cuh"
#include "include/tile/tile_operands.cuh"

struct ListWork : TileWork {
  u32 product;
};

// Output: Epilogue::Output of the products.
template <class Tile, class Output, int COUNT> struct ProductList {
  struct Product {
    TensorMap p, q;
    Output output;
    typename Tile::Schedule tiles;
  };

  Product products[COUNT];
  u32 items_before[COUNT];
  u32 items;
  BatchAxes<1> batches;  // not read by the loaders of a map with one batch axis

  __device__ __forceinline__ ListWork work(u32 item, u32 rank) const {
    const u32 product = last_not_above(items_before, COUNT, item);
    return {products[product].tiles.work(item - items_before[product], rank), product};
  }
};

// Loader of the products' p or q.
template <class List, class Loader, bool IS_P> struct ListOperand {
  const List& list;
  const Share share;
  ListWork next;

  __device__ __forceinline__ ListOperand(const List& list, Share share) : list(list), share(share) {}

  __device__ __forceinline__ void begin(const ListWork& work) { next = work; }

  __device__ __forceinline__ void load(u32 stage, u32 barrier) {
    const auto& product = list.products[next.product];
    Loader loader(IS_P ? product.p : product.q, list.batches, share);
    loader.begin(next);
    loader.load(stage, barrier);
    ++next.first_block;
  }
};

// Stores each tile by an Epilogue with the output of the tile's product. BY_MAP: Epilogue is a MapEpilogue without an
// operand; its count of stores, which chooses the staging buffer, goes on from tile to tile.
template <class List, class Epilogue, bool BY_MAP> struct ListEpilogue {
  const List& list;
  u8* const staging;
  u32 stores = 0;

  __device__ __forceinline__ ListEpilogue(const List& list, u8* staging) : list(list), staging(staging) {}

  __device__ __forceinline__ void begin(const ListWork&, u32) const {}

  template <class Accumulators>
  __device__ __forceinline__ void end(const Accumulators& d, const ListWork& work, u32 first_row) {
    Epilogue epilogue(list.products[work.product].output, staging, 0);
    if constexpr (BY_MAP) epilogue.stores = stores;
    epilogue.end(d, work, first_row);
    if constexpr (BY_MAP) stores = epilogue.stores;
  }

  __device__ __forceinline__ void finish() const {
    if constexpr (BY_MAP) bulk_wait_read<0>();
  }
};
