#include "troika/swarm/part_reducer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "troika/swarm/centred_clip.h"

namespace troika::swarm {

std::vector<Chunk> chunks_of(size_t first, size_t count, size_t number_bytes, size_t block) {
  const size_t most = (size_t{512} << 10) / number_bytes / block * block;
  std::vector<Chunk> chunks;
  for (size_t done = 0; done < count; done += most) {
    chunks.push_back({first + done, std::min(most, count - done)});
  }
  return chunks;
}

template <typename Number>
PartReducer<Number>::PartReducer(std::vector<Chunk> chunks, std::vector<size_t> contributors,
                                 Aggregation aggregation, Reduced reduced)
    : aggregation_(aggregation), reduced_(std::move(reduced)) {
  for (const auto& chunk : chunks) open_[chunk.first] = {chunk};
  for (const size_t contributor : contributors) weights_[contributor] = -1;
}

template <typename Number>
std::optional<std::string> PartReducer<Number>::add(size_t contributor, const Chunk& chunk,
                                                    double weight, std::vector<Number> numbers) {
  const auto known = weights_.find(contributor);
  if (known == weights_.end()) return "it contributes nothing any more";
  const auto open = open_.find(chunk.first);
  if (open == open_.end() || open->second.chunk.count != chunk.count ||
      open->second.contributions.contains(contributor)) {
    return fmt::format("its numbers [{}, {}) are not expected", chunk.first,
                       chunk.first + chunk.count);
  }
  if (!is_weight(weight) || (known->second >= 0 && known->second != weight)) {
    return fmt::format("its weight is {}", weight);
  }
  if (!std::ranges::all_of(numbers, [](Number number) { return std::isfinite(number); })) {
    return kNotFinite;
  }
  known->second = weight;
  open->second.contributions[contributor] = {weight, std::move(numbers)};
  reduce_if_complete(chunk.first);
  return std::nullopt;
}

template <typename Number>
void PartReducer<Number>::exclude(size_t contributor) {
  if (weights_.erase(contributor) == 0) return;
  std::vector<size_t> firsts;
  for (auto& [first, open] : open_) {
    open.contributions.erase(contributor);
    firsts.push_back(first);
  }
  for (const size_t first : firsts) reduce_if_complete(first);
}

template <typename Number>
bool PartReducer<Number>::waits_for(size_t contributor) const {
  return weights_.contains(contributor) && std::ranges::any_of(open_, [&](const auto& open) {
           return !open.second.contributions.contains(contributor);
         });
}

template <typename Number>
void PartReducer<Number>::reduce_if_complete(size_t first) {
  const auto found = open_.find(first);
  if (found->second.contributions.size() < weights_.size()) return;
  const auto open = std::move(open_.extract(found).mapped());
  double weight = 0;
  for (const auto& [contributor, one] : open.contributions) weight += one.weight;
  if (weight == 0) return reduced_(open.chunk, nullptr, 0, open.contributions);
  const auto exact = aggregation_ == Aggregation::mean
                         ? weighted_mean(open.contributions, open.chunk.count)
                         : clipped_mean(open.contributions);
  const std::vector<Number> average(exact.begin(), exact.end());
  // Large doubles, whose sums overflow.
  if (!std::ranges::all_of(average, [](Number number) { return std::isfinite(number); })) {
    return reduced_(open.chunk, nullptr, 0, open.contributions);
  }
  reduced_(open.chunk, &average, weight, open.contributions);
}

template <typename Number>
std::vector<double> PartReducer<Number>::weighted_mean(const Contributions& contributions,
                                                       size_t count) {
  double weight = 0;
  std::vector<double> sums(count);
  for (const auto& [contributor, one] : contributions) {
    // A peer without samples has sent no numbers.
    if (one.weight == 0) continue;
    weight += one.weight;
    for (size_t i = 0; i < count; ++i) sums[i] += one.weight * static_cast<double>(one.numbers[i]);
  }
  for (auto& sum : sums) sum /= weight;
  return sums;
}

template <typename Number>
std::vector<double> PartReducer<Number>::clipped_mean(const Contributions& contributions) {
  std::vector<std::span<const Number>> vectors;
  std::vector<double> weights;
  for (const auto& [contributor, one] : contributions) {
    if (one.weight == 0) continue;
    vectors.emplace_back(one.numbers);
    weights.push_back(one.weight);
  }
  return centred_clip<Number>(vectors, weights);
}

template class PartReducer<float>;
template class PartReducer<double>;

}  // namespace troika::swarm
