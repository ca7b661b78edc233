// The sums of one part of an averaging. Internal to the room.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "troika/swarm/averaging.h"

namespace troika::swarm {

// Numbers of a vector that travel together.
struct Chunk {
  size_t first = 0, count = 0;
};

// Cuts a part into chunks of at most 512 KiB, of whole blocks of a packing but for the last one.
std::vector<Chunk> chunks_of(size_t first, size_t count, size_t number_bytes, size_t block);

// Collects the contributions to a part, without messages. A contributor is an index of the group.
template <typename Number>
class PartReducer {
 public:
  struct Contribution {
    double weight = 0;
    std::vector<Number> numbers;  // may be missing if the weight is 0
  };
  // `average` is null, and `weight` 0, if the sum of weights is 0 or the average is not finite.
  // `contributions` are those that count.
  using Reduced =
      std::function<void(const Chunk& chunk, const std::vector<Number>* average, double weight,
                         const std::map<size_t, Contribution>& contributions)>;

  // `reduced` is called once for each chunk, as soon as all contributors that are left have
  // contributed to it. It must not call this object.
  PartReducer(std::vector<Chunk> chunks, std::vector<size_t> contributors, Aggregation aggregation,
              Reduced reduced);

  // Returns what is wrong with a contribution that was not taken.
  std::optional<std::string> add(size_t contributor, const Chunk& chunk, double weight,
                                 std::vector<Number> numbers);
  // Leaves the contributor out of all chunks that are not reduced.
  void exclude(size_t contributor);
  // Whether the part waits for the contributor.
  bool waits_for(size_t contributor) const;
  bool is_done() const { return open_.empty() || weights_.empty(); }

 private:
  struct Open {
    Chunk chunk;
    std::map<size_t, Contribution> contributions = {};
  };

  using Contributions = std::map<size_t, Contribution>;

  void reduce_if_complete(size_t first);
  static std::vector<double> weighted_mean(const Contributions& contributions, size_t count);
  static std::vector<double> clipped_mean(const Contributions& contributions);

  const Aggregation aggregation_;
  const Reduced reduced_;
  std::map<size_t, double> weights_;  // of contributors that are left; negative: not known
  std::map<size_t, Open> open_;       // by the first number
};

}  // namespace troika::swarm
