import pytest

from kohaku_ray.settings import find_secrets


@pytest.mark.parametrize(
    ("values", "secrets"),
    [
        ({"X-Api-Key": "sk-12345678"}, {"sk-12345678"}),
        ({"Cookie": "session=12345678"}, {"session=12345678"}),
        ({"X-Forward": "Bearer sk-12345678"}, {"Bearer sk-12345678"}),
        ({"options": [{"password": ["hunter22"]}]}, {"hunter22"}),
        ({"api_key": "EMPTY", "max_tokens": "long enough", "X-Note": "bearer"}, set()),
    ],
)
def test_keys_and_passwords_are_found_by_name_and_scheme(values, secrets):
    assert find_secrets(values) == secrets
