// The text form of the cuts of a profile's blocks.
#pragma once

#include <nlohmann/json.hpp>

#include "troika/layout/located_json.h"
#include "troika/layout/profile.h"

namespace troika::layout {

// Read the values of a block's keys `tensor` and `context`. Throw what Profile::parse() throws for
// them.
TensorCut read_tensor_cut(const JsonField& field);
ContextCut read_context_cut(const JsonField& field);
nlohmann::ordered_json as_json(const TensorCut& cut);
nlohmann::ordered_json as_json(const ContextCut& cut);
// Throws Error(usage), naming the field's weight_saved_share, for a share that is too large.
void require_saved_share(const JsonField& field, double share);

}  // namespace troika::layout
