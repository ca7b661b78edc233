#include "troika/comm/shm/native_collectives.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "troika/comm/call/reduce.h"

namespace troika::comm::shm {

namespace {

// The most bytes that each rank stages in one turn.
constexpr size_t kChunkBytes = size_t{256} << 10;
// Three chunks would suffice: one is written, one reduced, one read. But cache lines in the L1 and
// L2 caches of another processor are slow to write, so a byte is reused only after so many others
// that it has left these caches: 64 KiB take a third of the time they take with an area of three
// chunks.
constexpr size_t kStagingBytes = 8 * kChunkBytes;

constexpr size_t kLine = 64;

// The tensor that a rank provides to the others.
const at::Tensor& given(const Call& call) {
  const bool in_place =
      call.operation == Operation::all_reduce || call.operation == Operation::broadcast;
  return in_place ? call.output : call.input;
}

size_t bytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.nbytes() : 0;
}

char* data_of(const at::Tensor& tensor) {
  return static_cast<char*>(tensor.data_ptr());
}

// Computed from facts that ranks agree on, so all ranks get the same.
size_t agreed_bytes(const Call& call) {
  return static_cast<size_t>(call.fingerprint.count) * c10::elementSize(call.type);
}

bool knows(const Call& call) {
  switch (call.operation) {
    case Operation::all_reduce:
      return call.algorithm == Algorithm::automatic;
    case Operation::reduce_scatter:
    case Operation::all_gather:
    case Operation::broadcast:
    case Operation::barrier:
      return true;
    default:
      return false;
  }
}

// fingerprint.count is that of the whole tensor; in an all_gather each rank's input is a part of
// it.
bool is_small(const Call& call) {
  return knows(call) && agreed_bytes(call) <= kSlotBytes;
}

// The bytes [begin, begin + bytes) of each rank's part of a buffer.
struct Part {
  size_t begin;
  size_t bytes;
};

Part even_part(size_t bytes, size_t element, int n, int index) {
  const size_t count = bytes / element;
  const auto parts = static_cast<size_t>(n);
  const auto i = static_cast<size_t>(index);
  const size_t begin = i * (count / parts) + std::min(i, count % parts);
  return {begin * element, (count / parts + (i < count % parts ? 1 : 0)) * element};
}

std::vector<Part> parts_of(const std::vector<int64_t>& counts, size_t element) {
  std::vector<Part> parts;
  size_t begin = 0;
  for (const int64_t count : counts) {
    parts.push_back({begin, static_cast<size_t>(count) * element});
    begin += parts.back().bytes;
  }
  return parts;
}

// Returns the piece of a part for one turn.
Part piece(const Part& part, size_t turn, size_t per_turn) {
  const size_t begin = std::min(turn * per_turn, part.bytes);
  return {part.begin + begin, std::min(per_turn, part.bytes - begin)};
}

size_t largest(const std::vector<Part>& parts) {
  size_t bytes = 0;
  for (const Part& part : parts) bytes = std::max(bytes, part.bytes);
  return bytes;
}

size_t turns_for(size_t bytes, size_t per_turn) {
  return (bytes + per_turn - 1) / per_turn;
}

void copy(char* into, const char* from, size_t bytes) {
  if (bytes > 0 && into != from) std::memcpy(into, from, bytes);
}

}  // namespace

size_t NativeCollectives::staging_bytes() {
  return kStagingBytes;
}

NativeCollectives::NativeCollectives(std::shared_ptr<Board> board, std::shared_ptr<Arena> arena,
                                     std::vector<int> arena_ranks, bool in_place)
    : board_(std::move(board)),
      arena_(std::move(arena)),
      arena_ranks_(std::move(arena_ranks)),
      me_(board_->rank()),
      size_(board_->size()),
      in_place_(in_place),
      own_staging_(arena_->take(kStagingBytes)),
      stores_(/*decides=*/me_ == 0) {}

bool NativeCollectives::all_finished() const {
  for (int r = 0; last_call_ >= 0 && r < size_; ++r) {
    if (!board_->has_finished(r, last_call_)) return false;
  }
  return true;
}

void NativeCollectives::exchange_staging(Deadline deadline) {
  board_->slot(me_, 0).location = own_staging_.ref;
  board_->barrier(deadline);
  for (int r = 0; r < size_; ++r) {
    staging_.push_back(arena_->at(arena_ranks_[static_cast<size_t>(r)], board_->slot(r, 0).location,
                                  kStagingBytes));
  }
  board_->barrier(deadline);
}

// Powers of two fill the staging area without a remainder.
void NativeCollectives::start_turns(size_t bytes) {
  turn_bytes_ = std::bit_ceil(std::max(bytes, kLine));
  staged_ = (staged_ + turn_bytes_ - 1) / turn_bytes_ * turn_bytes_;
}

char* NativeCollectives::staging(int rank, size_t turn) const {
  return staging_[static_cast<size_t>(rank)] + (staged_ + turn * turn_bytes_) % kStagingBytes;
}

void NativeCollectives::publish(const Call& call) {
  stores_.start(static_cast<int>(call.operation), knows(call) ? agreed_bytes(call) : 0,
                is_small(call));
  CallSlot& slot = board_->slot(me_, call.fingerprint.sequence);
  slot.fingerprint = call.fingerprint;
  const auto& tensor = given(call);
  const size_t bytes = bytes_of(tensor);
  slot.location = 0;
  if (is_small(call)) {
    const bool gives = call.operation != Operation::broadcast || call.root == me_;
    if (gives && bytes > 0) give(slot.data, data_of(tensor), bytes, stores_.small_streams());
  } else if (in_place_ && knows(call) && bytes > 0) {
    slot.location = arena_->locate(tensor.data_ptr(), bytes);
  }
  board_->publish(call.fingerprint.sequence, stores_.notice());
}

bool NativeCollectives::run(const Call& call, Deadline deadline) {
  stores_.take(board_->notice(0, call.fingerprint.sequence));
  if (!knows(call)) return false;
  if (call.operation == Operation::barrier) return true;
  if (is_small(call)) {
    run_small(call);
  } else if (all_shared(call)) {
    run_in_place(call, deadline);
  } else {
    run_staged(call, deadline);
    last_call_ = call.fingerprint.sequence;
    board_->finish(last_call_);
  }
  stores_.finish();
  return true;
}

void NativeCollectives::run_small(const Call& call) const {
  const int64_t sequence = call.fingerprint.sequence;
  const size_t element = c10::elementSize(call.type);
  char* const output = data_of(call.output);
  if (call.operation == Operation::broadcast) {
    if (me_ != call.root) {
      copy(output, board_->slot(call.root, sequence).data, bytes_of(call.output));
    }
    return;
  }
  if (call.operation == Operation::all_gather) {
    const auto parts = parts_of(call.output_counts, element);
    for (int r = 0; r < size_; ++r) {
      const auto& [begin, bytes] = parts[static_cast<size_t>(r)];
      copy(output + begin, board_->slot(r, sequence).data, bytes);
    }
    return;
  }
  const Part own = call.operation == Operation::all_reduce
                       ? Part{0, bytes_of(call.output)}
                       : parts_of(call.input_counts, element)[static_cast<size_t>(me_)];
  c10::SmallVector<const void*, 16> terms;
  for (int r = 0; r < size_; ++r) {
    terms.push_back((r == me_ ? data_of(given(call)) : board_->slot(r, sequence).data) + own.begin);
  }
  void* into = output;
  reduce({&into, 1}, {terms.data(), terms.size()}, own.bytes / element, call.type, call.reduce_op,
         call.divisor);
}

bool NativeCollectives::all_shared(const Call& call) const {
  const auto shared = [&](int rank) {
    return board_->slot(rank, call.fingerprint.sequence).location != 0;
  };
  if (call.operation == Operation::broadcast) return shared(call.root);
  for (int r = 0; r < size_; ++r) {
    const bool gives_nothing =
        call.operation == Operation::all_gather && call.output_counts[static_cast<size_t>(r)] == 0;
    if (!gives_nothing && !shared(r)) return false;
  }
  return true;
}

void NativeCollectives::run_in_place(const Call& call, Deadline deadline) const {
  const size_t element = c10::elementSize(call.type);
  const auto buffer = [&](int rank, size_t bytes) -> char* {
    const Ref ref = board_->slot(rank, call.fingerprint.sequence).location;
    if (rank == me_ || ref == 0) return data_of(given(call));
    return arena_->at(arena_ranks_[static_cast<size_t>(rank)], ref, bytes);
  };
  const size_t whole = bytes_of(given(call));
  if (call.operation == Operation::broadcast) {
    if (me_ != call.root) copy(data_of(call.output), buffer(call.root, whole), whole);
  } else if (call.operation == Operation::all_gather) {
    const auto parts = parts_of(call.output_counts, element);
    for (int step = 0; step < size_; ++step) {
      const int r = (me_ + step) % size_;
      const auto& [begin, bytes] = parts[static_cast<size_t>(r)];
      if (bytes > 0) copy(data_of(call.output) + begin, buffer(r, bytes), bytes);
    }
  } else {
    const bool everywhere = call.operation == Operation::all_reduce;
    const Part own = everywhere ? even_part(bytes_of(call.output), element, size_, me_)
                                : parts_of(call.input_counts, element)[static_cast<size_t>(me_)];
    std::vector<const void*> terms;
    std::vector<void*> into;
    for (int r = 0; r < size_; ++r) {
      char* const at = buffer(r, whole) + own.begin;
      terms.push_back(at);
      if (everywhere) into.push_back(at);
    }
    if (!everywhere) into.push_back(data_of(call.output));
    reduce(into, terms, own.bytes / element, call.type, call.reduce_op, call.divisor);
  }
  board_->barrier(deadline);
}

void NativeCollectives::run_staged(const Call& call, Deadline deadline) {
  const size_t turns = call.operation == Operation::all_reduce ? all_reduce_staged(call, deadline)
                       : call.operation == Operation::reduce_scatter
                           ? reduce_scatter_staged(call, deadline)
                           : move_staged(call, deadline);
  staged_ += turns * turn_bytes_;
}

// Writes the result to both places. The streaming copy reads the result again; the blocks are small
// enough that it is still in the L1 cache.
void NativeCollectives::reduce_slice(const Call& call, char* own, char* staged,
                                     std::vector<const void*> terms, size_t bytes) const {
  constexpr size_t kBlock = size_t{16} << 10;
  const size_t element = c10::elementSize(call.type);
  if (!stores_.streams()) {
    void* const into[] = {own, staged};
    return reduce(into, terms, bytes / element, call.type, call.reduce_op, call.divisor);
  }
  for (size_t begin = 0; begin < bytes; begin += kBlock) {
    const size_t length = std::min(kBlock, bytes - begin);
    void* const into = own + begin;
    reduce({&into, 1}, terms, length / element, call.type, call.reduce_op, call.divisor);
    give(staged + begin, own + begin, length, true);
    for (auto& term : terms) term = static_cast<const char*>(term) + length;
  }
}

// In turn i, the data of chunk i for the other ranks is copied in, this rank's slice of chunk i-1
// is reduced, and the other ranks' results of chunk i-2 are copied out. Staging areas are used in
// rotation, so one barrier per turn suffices, and the last turn needs none, because the next call
// begins with one.
size_t NativeCollectives::all_reduce_staged(const Call& call, Deadline deadline) {
  const size_t element = c10::elementSize(call.type);
  const Part whole{0, bytes_of(call.output)};
  const size_t per_turn = std::min(whole.bytes, kChunkBytes / element * element);
  const size_t turns = turns_for(whole.bytes, per_turn);
  start_turns(per_turn);
  char* const data = data_of(call.output);
  const auto slice = [&](size_t turn, int rank) {
    return even_part(piece(whole, turn, per_turn).bytes, element, size_, rank);
  };
  const auto place = [&](size_t turn) { return data + turn * per_turn; };
  std::vector<const void*> terms(static_cast<size_t>(size_));
  for (size_t turn = 0; turn < turns + 2; ++turn) {
    if (turn < turns) {
      for (int r = 0; r < size_; ++r) {
        const auto [begin, bytes] = slice(turn, r);
        if (r != me_)
          give(staging(me_, turn) + begin, place(turn) + begin, bytes, stores_.streams());
      }
    }
    if (turn >= 1 && turn - 1 < turns) {
      const size_t middle = turn - 1;
      const auto [begin, bytes] = slice(middle, me_);
      for (int r = 0; r < size_; ++r) {
        terms[static_cast<size_t>(r)] = (r == me_ ? place(middle) : staging(r, middle)) + begin;
      }
      reduce_slice(call, place(middle) + begin, staging(me_, middle) + begin, terms, bytes);
    }
    if (turn >= 2) {
      for (int r = 0; r < size_; ++r) {
        const auto [begin, bytes] = slice(turn - 2, r);
        if (r != me_) copy(place(turn - 2) + begin, staging(r, turn - 2) + begin, bytes);
      }
    }
    if (turn < turns + 1) board_->barrier(deadline);
  }
  return turns;
}

// In turn i, the pieces for the other ranks are copied in, and the pieces of turn i-1 for this rank
// are reduced.
size_t NativeCollectives::reduce_scatter_staged(const Call& call, Deadline deadline) {
  const size_t element = c10::elementSize(call.type);
  const auto parts = parts_of(call.input_counts, element);
  const auto ranks = static_cast<size_t>(size_);
  const size_t per_turn = std::min(largest(parts), kChunkBytes / ranks / element * element);
  const size_t turns = turns_for(largest(parts), per_turn);
  start_turns(ranks * per_turn);
  const char* const input = data_of(call.input);
  const auto mine = static_cast<size_t>(me_);
  std::vector<const void*> terms(static_cast<size_t>(size_));
  for (size_t turn = 0; turn < turns + 1; ++turn) {
    for (int r = 0; turn < turns && r < size_; ++r) {
      const auto [begin, bytes] = piece(parts[static_cast<size_t>(r)], turn, per_turn);
      if (r == me_) continue;
      give(staging(me_, turn) + static_cast<size_t>(r) * per_turn, input + begin, bytes,
           stores_.streams());
    }
    if (turn >= 1) {
      const auto [begin, bytes] = piece(parts[mine], turn - 1, per_turn);
      for (int r = 0; r < size_; ++r) {
        terms[static_cast<size_t>(r)] =
            r == me_ ? input + begin : staging(r, turn - 1) + mine * per_turn;
      }
      void* const into = data_of(call.output) + (begin - parts[mine].begin);
      reduce({&into, 1}, terms, bytes / element, call.type, call.reduce_op, call.divisor);
    }
    if (turn < turns) board_->barrier(deadline);
  }
  return turns;
}

// all_gather and broadcast: in turn i a piece is copied in, and the pieces of turn i-1 are copied
// out.
size_t NativeCollectives::move_staged(const Call& call, Deadline deadline) {
  const bool all = call.operation == Operation::all_gather;
  const auto parts = all ? parts_of(call.output_counts, c10::elementSize(call.type))
                         : std::vector<Part>{{0, bytes_of(call.output)}};
  const size_t per_turn = std::min(largest(parts), kChunkBytes);
  const size_t turns = turns_for(largest(parts), per_turn);
  start_turns(per_turn);
  const auto part_of = [&](int rank) { return parts[all ? static_cast<size_t>(rank) : 0]; };
  char* const output = data_of(call.output);
  const char* const own = data_of(given(call));
  const bool gives = all || me_ == call.root;
  if (all) copy(output + part_of(me_).begin, own, part_of(me_).bytes);
  for (size_t turn = 0; turn < turns + 1; ++turn) {
    if (turn < turns && gives) {
      const auto [begin, bytes] = piece(part_of(me_), turn, per_turn);
      give(staging(me_, turn), own + (begin - part_of(me_).begin), bytes, stores_.streams());
    }
    for (int r = 0; turn >= 1 && r < size_; ++r) {
      if (r == me_ || (!all && r != call.root)) continue;
      const auto [begin, bytes] = piece(part_of(r), turn - 1, per_turn);
      copy(output + begin, staging(r, turn - 1), bytes);
    }
    if (turn < turns) board_->barrier(deadline);
  }
  return turns;
}

}  // namespace troika::comm::shm
