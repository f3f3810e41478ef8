"""Prepares and reads moto's S3: s3_setup.py PORT user | bucket NAME | load NAME FOLDER"""

import json
import pathlib
import sys
import urllib.request

import boto3

port, verb, *rest = sys.argv[1:]
url = f"http://127.0.0.1:{port}"


def client(kind):
    return boto3.client(
        kind,
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="setup",
        aws_secret_access_key="setup",
    )


def check_keys(after):
    """Requests after so many further ones must bear known keys."""
    headers = {"Content-Type": "text/plain"}
    request = urllib.request.Request(f"{url}/moto-api/reset-auth", str(after).encode(), headers, method="POST")
    urllib.request.urlopen(request).read()


check_keys(1_000_000)
if verb == "user":
    iam = client("iam")
    iam.create_user(UserName="gateway")
    document = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
    iam.put_user_policy(UserName="gateway", PolicyName="s3", PolicyDocument=json.dumps(document))
    key = iam.create_access_key(UserName="gateway")["AccessKey"]
    print(f"[default]\naws_access_key_id = {key['AccessKeyId']}\naws_secret_access_key = {key['SecretAccessKey']}")
elif verb == "bucket":
    client("s3").create_bucket(Bucket=rest[0])
else:
    s3 = client("s3")
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=rest[0]):
        for item in page.get("Contents", []):
            path = pathlib.Path(rest[1]) / item["Key"]
            path.parent.mkdir(parents=True, exist_ok=True)
            s3.download_file(rest[0], item["Key"], str(path))
check_keys(0)
