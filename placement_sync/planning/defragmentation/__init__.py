# SPDX-License-Identifier: Apache-2.0
"""Plans of moves that make room for a profile, and their execution.

- ``cloud_reader``: the cloud with what Nova knows about its servers
- ``move_planner``: a search whose moves Nova would accept
- ``move_plan``: ``MovePlan`` and its file
- ``plan_text``: a plan for people
- ``move_run``: one move after another, each checked before
- ``plan_command``, ``apply_command``: ``openstack accel plan``
"""
