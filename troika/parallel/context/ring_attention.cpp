#include "troika/parallel/context/ring_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "troika/compat/autocast.h"
#include "troika/compat/autograd.h"
#include "troika/compat/torch.h"
#include "troika/nn/dropout.h"
#include "troika/nn/token_part.h"

namespace troika::parallel {

namespace {

using torch::autograd::variable_list;

// Tensors that go to the next rank of a ring, and those that come from the rank before.
struct Shift {
  at::Tensor leaving, arriving;
  comm::Work work;

  at::Tensor finish() const {
    work.wait();
    return arriving;
  }
};

Shift shift(const at::Tensor& own, const comm::Group& ring, int tag, const char* label) {
  const int size = ring.size(), next = (ring.rank() + 1) % size;
  const int before = (ring.rank() + size - 1) % size;
  at::Tensor arriving = at::empty_like(own);
  auto work = ring.batch(
      {{comm::Direction::receive, arriving, before, tag}, {comm::Direction::send, own, next, tag}},
      label);
  return {own, std::move(arriving), std::move(work)};
}

Shift shift_pairs(const at::Tensor& own, const comm::Group& ring) {
  return shift(own, ring, 0, "context axis: keys and values");
}

Shift shift_gradients(const at::Tensor& own, const comm::Group& ring) {
  return shift(own, ring, 1, "context axis: gradients of keys and values");
}

// Own tokens [q_begin, q_end) attend to tokens [k_begin, k_end) of another rank's part.
struct Tile {
  int64_t q_begin, q_end, k_begin, k_end;
  bool is_causal;     // otherwise all pairs count
  int64_t above = 0;  // rows of the causal tile that lie above this part of it

  int64_t rows() const { return q_end - q_begin; }
  int64_t keys() const { return k_end - k_begin; }
  // Returns `count` rows at most, from row `first`.
  Tile part(int64_t first, int64_t count) const {
    const int64_t begin = q_begin + first;
    return {begin, std::min(begin + count, q_end), k_begin, k_end, is_causal, first};
  }
};

// The pairs of this rank's chunks with those of rank `from`. All ranks have as many pairs with each
// other rank's keys.
std::vector<Tile> tiles_with(int from, int own, int64_t chunk) {
  const int64_t all = 2 * chunk;
  if (from < own) return {{0, all, 0, chunk, false}};
  if (from > own) return {{chunk, all, 0, all, false}};
  return {
      {0, chunk, 0, chunk, true}, {chunk, all, 0, chunk, false}, {chunk, all, chunk, all, true}};
}

// The part of attention that the passes need to know about.
struct Setting {
  comm::Group ring;
  double dropout = 0;
  std::vector<int64_t> keys = {};  // of the draw for the dropout
  int64_t first_head = 0;          // in the whole layer
  int64_t batch = 0;
  int64_t most_scores = 0;           // that a pass holds at a time, of one row at least
  at::ScalarType wide = at::kFloat;  // of sums
};

// The tensors of a pass. Queries are [batch * kv heads, queries of one head of keys, own tokens,
// size], scaled; keys and values one behind the other, [2, batch * kv heads, own tokens, size].
class RingPass {
 public:
  RingPass(const Setting& of, at::Tensor queries, const at::Tensor& pairs)
      : of_(of), queries_(std::move(queries)), pairs_(pairs) {}

  // Calls visit(tile, keys, values, from) for blocks of rows of all tiles, in the order in which
  // the pairs arrive; after_rank() after those of one rank.
  template <typename Visit, typename AfterRank>
  void for_each_tile(const Visit& visit, const AfterRank& after_rank) const {
    const int size = of_.ring.size(), own = of_.ring.rank();
    at::Tensor pairs = pairs_;
    for (int step = 0; step < size; ++step) {
      const int from = (own + size - step) % size;
      std::optional<Shift> next;
      if (step + 1 < size) next = shift_pairs(pairs, of_.ring);
      for (const auto& tile : tiles_with(from, own, chunk())) {
        const auto part = pairs.slice(2, tile.k_begin, tile.k_end);
        const int64_t rows = std::max<int64_t>(1, of_.most_scores / scores_of_a_row(tile));
        for (int64_t row = 0; row < tile.rows(); row += rows) {
          visit(tile.part(row, rows), part[0], part[1], from);
        }
      }
      after_rank();
      if (next) pairs = next->finish();
    }
  }

  int64_t chunk() const { return queries_.size(2) / 2; }
  int64_t scores_of_a_row(const Tile& tile) const {
    return std::max<int64_t>(1, queries_.size(0) * queries_.size(1) * tile.keys());
  }

  // Returns rows of a tensor like the queries, [batch * kv heads, rows, ...].
  static at::Tensor rows_of(const at::Tensor& x, const Tile& tile) {
    return x.slice(2, tile.q_begin, tile.q_end).flatten(1, 2);
  }
  at::Tensor queries_of(const Tile& tile) const { return rows_of(queries_, tile); }

  // Returns the scores of a tile, [batch * kv heads, rows, keys].
  at::Tensor scores(const Tile& tile, const at::Tensor& keys) const {
    at::Tensor result = at::bmm(queries_of(tile), keys.transpose(1, 2)).to(of_.wide);
    if (!tile.is_causal) return result;
    const int64_t rows = tile.rows();
    const at::Tensor future =
        at::ones({rows, tile.keys()}, result.options().dtype(at::kBool)).triu_(1 + tile.above);
    result.unflatten(1, {-1, rows}).masked_fill_(future, -std::numeric_limits<double>::infinity());
    return result;
  }

  // Returns a tensor like the scores of a tile with its part of the layer's mask.
  at::Tensor dropped(const at::Tensor& x, const Tile& tile, int from) const {
    if (of_.dropout == 0) return x;
    const nn::TokenPart own{of_.ring.rank(), of_.ring.size()}, other{from, of_.ring.size()};
    const int64_t length = 2 * chunk() * own.count;
    const auto rows = own.stretches(2 * chunk()), columns = other.stretches(2 * chunk());
    nn::MaskPlaces places{chunk(), {}, length * length};
    for (int64_t q = tile.q_begin; q < tile.q_end; ++q) {
      const int64_t row = rows[static_cast<size_t>(q / chunk())].first + q % chunk();
      for (int64_t k = tile.k_begin / chunk(); k < tile.k_end / chunk(); ++k) {
        places.bases.push_back((of_.first_head * length + row) * length +
                               columns[static_cast<size_t>(k)].first);
      }
    }
    return nn::masked_by_keys(x.contiguous(), of_.keys, of_.dropout, places);
  }

 private:
  const Setting& of_;
  const at::Tensor queries_, pairs_;
};

struct Attended {
  at::Tensor mixed;     // like the queries, in the type of sums
  at::Tensor log_sums;  // of exponentials of scores, with a last dimension of 1
};

Attended attend(const Setting& of, const at::Tensor& queries, const at::Tensor& pairs) {
  const RingPass pass(of, queries, pairs);
  auto sizes = queries.sizes().vec();
  const auto wide = queries.options().dtype(of.wide);
  const at::Tensor mixed = at::zeros(sizes, wide);
  sizes.back() = 1;
  const at::Tensor most = at::full(sizes, -std::numeric_limits<double>::infinity(), wide);
  const at::Tensor sums = at::zeros(sizes, wide);
  pass.for_each_tile(
      [&](const Tile& tile, const at::Tensor& keys, const at::Tensor& values, int from) {
        const auto own = [&](const at::Tensor& x) { return x.slice(2, tile.q_begin, tile.q_end); };
        at::Tensor weights = pass.scores(tile, keys);
        const auto by_head = [&](const at::Tensor& x) { return x.unflatten(1, {-1, tile.rows()}); };
        const at::Tensor larger = at::maximum(own(most), by_head(weights.amax(-1, true)));
        const at::Tensor shrink = own(most).sub(larger).exp_();
        weights.sub_(larger.flatten(1, 2)).exp_();
        own(sums).mul_(shrink).add_(by_head(weights.sum(-1, true)));
        weights = pass.dropped(weights, tile, from).to(values.scalar_type());
        own(mixed).mul_(shrink).add_(by_head(at::bmm(weights, values)));
        own(most).copy_(larger);
      },
      [] {});
  return {mixed.div_(sums), sums.log().add_(most)};
}

struct Gradients {
  at::Tensor queries, pairs;  // in the type of sums
};

Gradients differentiate(const Setting& of, const at::Tensor& queries, const at::Tensor& pairs,
                        const Attended& made, const at::Tensor& of_mixed) {
  const RingPass pass(of, queries, pairs);
  const auto wide = queries.options().dtype(of.wide);
  Gradients result{at::zeros(queries.sizes(), wide), {}};
  const at::Tensor inner = of_mixed.mul(made.mixed).sum(-1, true);
  const at::Tensor narrow = of_mixed.to(queries.scalar_type());
  at::Tensor of_pairs = at::zeros(pairs.sizes(), wide);
  std::optional<Shift> arriving;
  const auto visit = [&](const Tile& tile, const at::Tensor& keys, const at::Tensor& values,
                         int from) {
    const auto rows = [&](const at::Tensor& x) { return RingPass::rows_of(x, tile); };
    const at::Tensor weights = pass.scores(tile, keys).sub_(rows(made.log_sums)).exp_();
    const at::Tensor of_rows = rows(narrow);
    const at::Tensor of_weights =
        pass.dropped(at::bmm(of_rows, values.transpose(1, 2)).to(of.wide), tile, from);
    const at::Tensor used = pass.dropped(weights, tile, from).to(queries.scalar_type());
    const auto part = of_pairs.slice(2, tile.k_begin, tile.k_end);
    part[1].add_(at::bmm(used.transpose(1, 2), of_rows));
    const at::Tensor of_scores =
        of_weights.sub(rows(inner)).mul_(weights).to(queries.scalar_type());
    part[0].add_(at::bmm(of_scores.transpose(1, 2), pass.queries_of(tile)));
    result.queries.slice(2, tile.q_begin, tile.q_end)
        .add_(at::bmm(of_scores, keys).unflatten(1, {-1, tile.rows()}));
  };
  // The gradients of a rank's pairs go one rank further when this rank has added its own.
  const auto after_rank = [&] {
    if (arriving) of_pairs.add_(arriving->finish());
    if (of.ring.size() == 1) return;
    arriving = shift_gradients(of_pairs, of.ring);
    of_pairs = at::zeros_like(of_pairs);
  };
  pass.for_each_tile(visit, after_rank);
  result.pairs = arriving ? arriving->finish() : of_pairs;
  return result;
}

// From [batch, tokens, kv heads * heads of each, size] to [batch * kv heads, heads of each, tokens,
// size], and back.
at::Tensor by_kv_head(const at::Tensor& x, int64_t kv_heads) {
  return x.unflatten(2, {kv_heads, -1}).permute({0, 2, 3, 1, 4}).flatten(0, 1).contiguous();
}

at::Tensor by_token(const at::Tensor& x, int64_t batch) {
  return x.unflatten(0, {batch, -1}).permute({0, 3, 1, 2, 4}).flatten(2, 3);
}

class RingNode : public torch::autograd::Node {
 public:
  RingNode(Setting of, double scale) : of_(std::move(of)), scale_(scale) {}

  void save(at::TensorList made) {
    for (const at::Tensor& tensor : made) saved_.emplace_back(tensor, /*is_output=*/false);
  }

  variable_list apply(variable_list&& gradients) override {
    compat::refuse_create_graph("ring attention");
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    const compat::AutocastGuard in_own_type(gradients[0].device().type(), {});
    std::vector<at::Tensor> made;
    for (const auto& saved : saved_) made.push_back(saved.unpack());
    const auto &queries = made[0], &pairs = made[1];
    const int64_t kv_heads = pairs.size(1) / of_.batch, each = queries.size(1);
    const auto type = queries.scalar_type();
    const at::Tensor of_mixed =
        by_kv_head(gradients[0].unflatten(2, {kv_heads * each, -1}).to(of_.wide), kv_heads);
    const auto found = differentiate(of_, queries, pairs, {made[2], made[3]}, of_mixed);
    const auto of_heads = [&](const at::Tensor& x) {
      return by_token(x.unsqueeze(1), of_.batch).to(type);
    };
    return {by_token(found.queries.mul(scale_), of_.batch).to(type), of_heads(found.pairs[0]),
            of_heads(found.pairs[1])};
  }

  void release_variables() override {
    for (auto& saved : saved_) saved.reset_data();
  }

 private:
  const Setting of_;
  const double scale_;
  std::vector<torch::autograd::SavedVariable> saved_;
};

}  // namespace

at::Tensor ring_attention(const nn::AttentionHeads& own, double dropout,
                          const std::optional<nn::EqualPart>& part, const comm::Group& axis,
                          int64_t most_scores) {
  const auto& [q, k, v] = own;
  const int64_t batch = q.size(0), kv_heads = k.size(2);
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
  Setting of{.ring = axis,
             .dropout = dropout,
             .first_head = part ? part->index * q.size(2) : 0,
             .batch = batch,
             .most_scores = most_scores,
             .wide = at::promote_types(q.scalar_type(), at::kFloat)};
  if (dropout > 0) of.keys = nn::keys_for_a_part();
  at::Tensor queries, pairs, result;
  Attended made;
  {
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    const compat::AutocastGuard in_own_type(q.device().type(), {});
    queries = by_kv_head(q, kv_heads).mul(scale);
    pairs = at::stack({by_kv_head(k, kv_heads).squeeze(1), by_kv_head(v, kv_heads).squeeze(1)});
    made = attend(of, queries, pairs);
    result = by_token(made.mixed, batch).to(q.scalar_type()).flatten(2);
    if (result.is_alias_of(made.mixed)) result = result.clone();  // the caller may write to it
  }
  const bool needs_graph = q.requires_grad() || k.requires_grad() || v.requires_grad();
  if (!at::GradMode::is_enabled() || !needs_graph) return result;
  const auto node = compat::make_node<RingNode>(std::move(of), scale);
  static_cast<RingNode&>(*node).save({queries, pairs, made.mixed, made.log_sums});
  node->set_next_edges(torch::autograd::collect_next_edges(q, k, v));
  compat::set_history(result, node);
  return result;
}

}  // namespace troika::parallel
