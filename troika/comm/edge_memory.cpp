#include "troika/comm/edge_memory.h"

#include "troika/comm/edge_parts.h"

namespace troika::comm {

EdgeBytes receiving_edge_bytes(const EdgeTraffic& traffic) {
  const bool is_posted = is_posted_ahead(static_cast<size_t>(traffic.tensor_bytes));
  const int64_t tensors = int64_t{traffic.referenced} + (is_posted ? traffic.depth : 0);
  return {.tensors = tensors * traffic.tensor_bytes,
          .frames = int64_t{traffic.depth} * static_cast<int64_t>(kFrameRoom)};
}

EdgeBytes sending_edge_bytes(const EdgeTraffic& traffic) {
  const bool is_inline = traffic.tensor_bytes <= static_cast<int64_t>(kInlineBytes);
  const int64_t frame = static_cast<int64_t>(sizeof(EdgeFrame) + kMostHeaderBytes);
  const int64_t depth = traffic.depth;
  return {.tensors = is_inline ? 0 : depth * traffic.tensor_bytes,
          .frames = depth * (frame + (is_inline ? traffic.tensor_bytes : 0))};
}

}  // namespace troika::comm
