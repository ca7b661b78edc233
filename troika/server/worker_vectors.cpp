// Vector operations of a worker.
#include <fmt/format.h>

#include <utility>

#include "troika/server/key_groups.h"
#include "troika/server/vector_kernels.h"
#include "troika/server/worker.h"

namespace troika::server {

namespace {

// Returns the operations as the values of a request. Throws Error(server, usage) for tables that
// cannot be vectors of one call.
std::vector<TableOperation> table_operations(const RingMap& map,
                                             const VectorOperations& operations) {
  std::vector<TableOperation> found;
  const auto index = [&](const std::string& name) {
    const auto table = table_index(map, name);
    const auto& first = found.empty() ? map.tables[table] : map.tables[found[0].x];
    const auto problem = vector_problem(first, map.tables[table]);
    if (problem.empty()) return table;
    throw Error("server", ErrorKind::usage, {.what = "vector operations: " + problem});
  };
  for (const auto& operation : operations) {
    const auto x = index(operation.x);
    const auto y = has_second(operation.kind) ? index(operation.y) : 0;
    found.push_back({.kind = operation.kind, .x = x, .y = y, .factor = operation.factor});
  }
  return found;
}

}  // namespace

Handle Worker::compute(const VectorOperations& operations, const CallOptions& options) {
  const auto call = std::make_shared<Call>(endpoint_);
  call->what = "the vector operations";
  // The numbers are float64 also for tables of float32.
  call->table.type = ValueType::float64;
  const auto map = map_for(call->what, [&] { call->timestamp = ++last_timestamp_; });
  const auto found = table_operations(*map, operations);
  if (found.empty()) return enqueue(call, options);
  call->what = fmt::format("the {} table {}", phrase_of(Operation::compute), operations[0].x);
  const uint32_t table = found[0].x;
  call->table = map->tables[table];
  for (const auto& [kind, x, y, factor] : operations) {
    if (returns_number(kind)) call->numbers.push_back(kind);
  }
  RequestBody body{.operation = Operation::compute, .table = table};
  body.values = {reinterpret_cast<const char*>(found.data()),
                 found.size() * sizeof(TableOperation)};
  Coding coding;
  const auto parts = make_parts(body, ValueType::float64, coding, 0);
  const KeySpan all{0, call->table.keys};
  for (const auto& group :
       group_keys(call->table, all, static_cast<uint32_t>(map->ranges.size()))) {
    call->requests.push_back(std::make_shared<RangeRequest>(RangeRequest{
        .call = call, .keys = group, .operation = body.operation, .table = table, .parts = parts}));
  }
  call->table.type = ValueType::float64;
  return enqueue(call, options);
}

}  // namespace troika::server
