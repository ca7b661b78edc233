// The page of a swarm for browsers.
#pragma once

#include <string>

#include "troika/net/http_server.h"

namespace troika::cli {

// The path at which the page looks for as_json(), every two seconds.
inline constexpr const char* kSwarmNumbers = "/numbers.json";

// One file that loads nothing but these numbers. Texts of peers are never read as HTML.
net::HttpReply swarm_page(const std::string& run);

}  // namespace troika::cli
