// The memory of the messages between stages of a pipeline.
#pragma once

namespace troika::plan {

// Tensors of at most so many bytes arrive with their message's head, without a posted buffer
// (comm::kInlineBytes).
inline constexpr double kInlinedBytes = 8 << 10;

// The receive buffers of a tensor of one edge, as comm::BufferPool has them: `depth` are posted at
// any time, those that are lent to the program stay with it until it gives them back, and up to
// `depth` of these are kept for later messages.
class ReceiveBuffers {
 public:
  ReceiveBuffers() = default;
  // `bytes` of a tensor.
  ReceiveBuffers(double bytes, int depth) : bytes_(bytes), depth_(depth) {}

  void receive() {
    ++lent_;
    if (free_ > 0) --free_;
  }
  void give_back() {
    --lent_;
    if (free_ < depth_) ++free_;
  }
  double held() const { return bytes_ * (is_inlined() ? lent_ : depth_ + lent_ + free_); }
  // Returns held() when `lent` tensors are lent, and no more have been.
  double held_with(double lent) const { return bytes_ * (is_inlined() ? lent : depth_ + lent); }
  // Returns the bytes of the buffers of evaluations with the same tensors. Batches follow each
  // other, so one buffer beside the posted ones is lent at a time.
  double of_evaluations() const { return is_inlined() ? 0 : bytes_ * (depth_ + 1); }

 private:
  bool is_inlined() const { return bytes_ <= kInlinedBytes; }

  double bytes_ = 0;
  int depth_ = 1;
  int lent_ = 0, free_ = 0;
};

}  // namespace troika::plan
