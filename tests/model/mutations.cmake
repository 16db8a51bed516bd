# Mutants of the reference backend: mutant(NAME FILE FROM TO) is the program mutant_NAME whose copy of
# src/backend/reference/FILE has TO in the place of FROM. tests/model/test_mutations.c runs them and wants each to fail.
# A FROM that is not in the file (any more) breaks that target's build, not the configuration.
add_library(mutant_main OBJECT EXCLUDE_FROM_ALL model/mutant.c)
target_link_libraries(mutant_main PRIVATE room_model)
target_include_directories(mutant_main PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})

function(mutant name file from to)
  set(source ${CMAKE_SOURCE_DIR}/src/backend/reference/${file})
  set(copy ${CMAKE_CURRENT_BINARY_DIR}/mutants/${name}_${file})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
  file(READ ${source} text)
  string(REPLACE "${from}" "${to}" changed "${text}")
  if(changed STREQUAL text)
    set(changed "#error mutation ${name} no longer applies to ${file}: adapt tests/model/mutations.cmake\n")
  endif()
  set(old "")
  if(EXISTS ${copy})
    file(READ ${copy} old)
  endif()
  if(NOT changed STREQUAL old)
    file(WRITE ${copy} "${changed}")
  endif()
  set_source_files_properties(${copy} PROPERTIES COMPILE_OPTIONS "-O3;-w")
  add_executable(mutant_${name} EXCLUDE_FROM_ALL $<TARGET_OBJECTS:mutant_main> ${copy})
  target_link_libraries(mutant_${name} PRIVATE room_model)
  set_target_properties(mutant_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_dependencies(test_model_mutations mutant_${name})
endfunction()

mutant(norm_gain norm_rotary.c "rms_norm(x, gain, 1, n, eps, out)" "rms_norm(x, gain, 0, n, eps, out)")
mutant(rotary_pairs norm_rotary.c
[[        float a = x[j], b = x[j + half];
        x[j] = a * cosine[j] - b * sine[j];
        x[j + half] = b * cosine[j] + a * sine[j];]]
[[        float a = x[2 * j], b = x[2 * j + 1];
        x[2 * j] = a * cosine[j] - b * sine[j];
        x[2 * j + 1] = b * cosine[j] + a * sine[j];]])
mutant(rotary_direction norm_rotary.c "a * cosine[j] - b * sine[j]" "a * cosine[j] + b * sine[j]")
mutant(gate_clamp experts.c "gate[i] > limit ? limit : gate[i]"
       "gate[i] > limit ? limit : gate[i] < -limit ? -limit : gate[i]")
mutant(up_offset experts.c "(u + 1) * g" "u * g")
mutant(softmax_routing experts.c "s[e] = sigmoid(s[e])" "s[e] = expf(s[e])")
mutant(bias_in_weights experts.c "sum += s[routes[i]]" "s[routes[i]] += bias[routes[i]], sum += s[routes[i]]")
mutant(bias_ignored experts.c "s[e] + bias[e]" "s[e] + 0 * bias[e]")
mutant(shared_scaled experts.c "routed + step->y[i]" "routed + m->routed_scaling * step->y[i]")
mutant(shared_selection index.c "*list = candidates(step, 0, t, r)" "*list = candidates(step, 0, t, 0)")
mutant(local_not_forced index.c "b >= visible - m->index_local" "false")
mutant(selection_unused attention.c "if (!m->layer[layer].sparse) return true;" "return true;")
mutant(future_visible attention.c "tokens < CACHE_BLOCK ? tokens" "tokens < 0 ? tokens")
