// Filters: what a worker leaves out of its messages, and how it encodes the rest (Li et al., OSDI
// 2014, section 3.5; NIPS 2014, section 4). A chain of filters applies to the pushes of a table,
// and another one to its pulls.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "troika/server/table.h"

namespace troika::server {

enum class FilterKind : uint8_t {
  // Leaves out a key whose pushed values, added up since they were last sent, are all at most
  // `threshold` / (1 + `shrink` * step) in magnitude. The rest is kept, and added to the next push
  // of the key. Pushes only.
  significant,
  // Sends each key with probability `probability`, with its values divided by it, so that the
  // expectation of the sum is unchanged. Pushes only.
  skip,
  // For proximal_l1: leaves out a key if the worker's last pull of it returned zeros, and all
  // pushed values are at most `l1` - `margin` in magnitude (the Karush-Kuhn-Tucker conditions say
  // that such a weight stays zero). A key that was not pulled yet is sent. Pushes only.
  kkt,
  // A list of keys that was sent before is replaced by its 64-bit hash, until the server asks for
  // it again.
  cache_keys,
  // Values have 16 bits (IEEE 754 binary16).
  half,
  // Values have 1, 2 or 3 `bytes`: their position between the smallest and the largest value of the
  // message. They are rounded at random, so that the expectation is the value.
  fixed,
  // Keys and values are compressed with zlib, where that is shorter.
  zlib,
};

struct Filter {
  FilterKind kind = FilterKind::zlib;
  double threshold = 0;
  double shrink = 0;
  double probability = 1;
  double l1 = 0;
  double margin = 0;
  double bytes = 2;
  double seed = 0;  // of random draws: `skip` and `fixed`

  bool operator==(const Filter&) const = default;
};

// A chain, in the order in which the filters apply to a message that is sent.
using Filters = std::vector<Filter>;

// Returns text such as `kkt l1=0.1 margin=0, cache_keys, fixed bytes=2 seed=0, zlib`.
std::string to_text(const Filters& filters);
// The inverse of to_text(); absent numbers have their defaults, and an empty text is an empty
// chain. Throws Error(server, usage) for an unknown word or number.
Filters parse_filters(std::string_view text);

// Whether filters apply to pushes or to pulls.
enum class Direction : uint8_t { push, pull };
// Throws Error(server, usage) if the chain cannot work: filters of pushes for pulls, numbers out of
// range, a filter twice, or an order other than: filters that leave out keys, cache_keys, half or
// fixed, zlib.
void check_filters(const Filters& filters, Direction direction);

// Whether values on servers and workers are those without the filter, for any order of messages. If
// not, the filter is lossy. `significant` with threshold 0 only leaves out zeros, so it is lossless
// for the rules that zeros do not change: sum, sgd, adagrad without weight decay, in tables without
// `admit` and `rows`, which count pushes of zeros. `kkt` is lossless for per_push tables with rule
// proximal_l1, if `l1` is at most the rule's and no other worker pushes between pull and push; this
// function does not count it as lossless.
bool is_lossless(const Filter& filter, const TableSpec& table);

}  // namespace troika::server
