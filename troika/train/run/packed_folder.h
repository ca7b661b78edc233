// The files of a folder as one text, to send them.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace troika::train {

// Returns the names and the contents of the files in a folder and the folders in it.
std::string packed(const std::filesystem::path& folder);
// Writes them into another folder. Throws CheckError for a text that packed() did not return, and
// for names that lead out of the folder.
void unpack(std::string_view text, const std::filesystem::path& folder);

}  // namespace troika::train
