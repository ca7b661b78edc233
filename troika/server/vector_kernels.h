// Vector operations on memory, and their form in messages. Internal to the room.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "troika/server/table.h"
#include "troika/server/vector_algebra.h"

namespace troika::server {

// Execute an operation on the elements of x and y, which are equally many where the operation has a
// y: execute() one that changes x, reduce() one that returns a number. `T` is float or double. The
// result depends only on the elements and their order.
template <typename T>
void execute(VectorKind kind, std::span<T> x, std::span<const T> y, double factor);
template <typename T>
double reduce(VectorKind kind, std::span<const T> x, std::span<const T> y);

// Returns why tables cannot be vectors of one request; empty if they can: they must be dense, with
// a width, and have the same type, width and number of keys.
std::string vector_problem(const TableSpec& one, const TableSpec& other);

// An operation in a request: tables by their index in the map.
struct TableOperation {
  VectorKind kind = VectorKind::fill;
  uint32_t x = 0;
  uint32_t y = 0;
  uint32_t unused = 0;  // 0
  double factor = 0;
};
// Returns the operations of a request's values. Throws Error(server, failure) if the bytes are
// none.
std::vector<TableOperation> parse_operations(std::span<const char> values);

}  // namespace troika::server
